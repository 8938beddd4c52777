"""HSML, a stage a file in the order of the paper's section 4: embed, cluster, gate, and the learner that joins them."""
