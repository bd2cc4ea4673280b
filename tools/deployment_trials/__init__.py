"""What a deployment survives: its processes are killed and stopped in the middle of runs.

Every trial runs on a real SuperLink and real SuperNodes of this machine (``examples/deploy``), on
the loopback only, and ends with the books: whatever was killed, the server's ledger and every
node's verify, nothing was released that no line paid for, and no line was asked twice.
"""
