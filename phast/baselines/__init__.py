"""Models that others would use, written by us: what PHAST is compared with."""
