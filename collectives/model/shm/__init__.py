"""Predicted times of ranks that share memory, from the executor's own passes and messages.

`reckon` is the way in; `rates` has what is known of the machine, `draft` what the ranks do,
`states` where caches hold it, `passes` and `mail` the two ways in which plans are carried out.
"""
