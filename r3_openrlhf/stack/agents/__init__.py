"""Trajectories in an environment instead of single responses: what changes on OpenRLHF's side."""
