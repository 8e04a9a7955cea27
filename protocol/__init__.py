"""What is true on the subnet: the draw, the messages, the evidence and the verdict. Pure functions only."""
