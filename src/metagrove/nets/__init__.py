"""Base learners and the parts that learners share."""
