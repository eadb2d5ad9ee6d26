"""The papers' experiments: named sets of runs, and what they come to."""
