"""Base nets, and the parts that learners share."""
