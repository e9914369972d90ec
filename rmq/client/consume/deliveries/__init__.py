"""Messages in the hands of handlers: their outcomes, time-outs and rates."""
