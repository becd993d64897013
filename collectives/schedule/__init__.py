"""What moves: schedules as data, passes, proof, cost, and the catalogue of algorithms."""
