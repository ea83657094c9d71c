"""What every question shares: rounds, guard, references, results, pictures, the page."""
