"""The gateway's HTTP faces: customers, miners, validators."""
