"""Pure rules of the gateway: states, money, prices, lines. No input or output."""
