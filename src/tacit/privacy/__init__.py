"""The privacy core: bounded answers, integer noise, exact prices, a ledger and a planner."""
