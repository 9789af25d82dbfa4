"""Our client against our daemon, through networks that misbehave."""
