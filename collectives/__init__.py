"""What moves: schedules, their proof, their cost and their execution."""
