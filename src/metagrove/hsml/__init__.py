"""HSML, one stage per file, as in section 4 of the paper: embed, cluster, gate, and the learner that joins them."""
