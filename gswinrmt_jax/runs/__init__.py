"""The run folder: what is written while a model trains."""
