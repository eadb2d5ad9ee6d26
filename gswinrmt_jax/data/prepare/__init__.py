"""`gswinrmt prepare`: writes data sets once, for `data` to read."""
