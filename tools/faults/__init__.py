"""What Tacit survives: kills, damaged files, strange messages and federations that go wrong.

Every trial ends with an independent look at everything that lies on disk then
(:mod:`tools.faults.history`): nothing was released that no line paid for, whatever happened.
"""
