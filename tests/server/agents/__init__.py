"""Bodies of the requests of coding agents: recorded from the real programs, without their texts, and sent again."""
