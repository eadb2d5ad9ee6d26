"""The papers' experiments: named sets of runs, and reports of their results."""
