"""What ranks take that share one memory: the executor's passes and letters, reckoned one by one.

`reckon` is the way in; `rates` has what is known of the machine, `draft` what the ranks do,
`states` where caches hold it, `passes` and `mail` the two ways in which plans are carried out.
"""
