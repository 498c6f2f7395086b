"""Whether results are right: error statistics, budgets and open choices, for ``ab`` and the kit."""
