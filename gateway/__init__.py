"""The gateway: takes batches from customers, work to miners, claims to validators, and money only for what passed."""
