"""The miner: leases tasks, draws every token as forced, submits signed token ids."""
