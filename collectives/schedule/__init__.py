"""What moves: schedules as data, their passes, proof and cost, and the catalogue that finds them."""
