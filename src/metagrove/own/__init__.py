"""People's own data: tables in, a trained run, predictions in their own units."""
