"""Models by name: names of the Hub and of the store, what they mean, and the files behind them."""
