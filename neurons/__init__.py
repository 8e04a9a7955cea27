"""The outside: environment, chain, model hub, process start. Everything else is handed what it needs."""
