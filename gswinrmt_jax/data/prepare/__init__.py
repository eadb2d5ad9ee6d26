"""Implements `gswinrmt prepare`, which writes data sets for `data` to read."""
