"""Messages in flight: their outcomes, time-outs and rates."""
