"""Is a difference one? Two commands in turns, and the tool itself where nothing has changed."""
