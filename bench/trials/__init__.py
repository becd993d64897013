"""Is a difference one? Two commands, interleaved, and the tool itself where nothing has changed."""
