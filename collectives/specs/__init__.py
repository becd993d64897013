"""One file per collective, with one constant: the result that its schedules must achieve."""
