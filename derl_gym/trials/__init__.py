"""Trials: what keeps inner runs alive, limited and written down.

``pool`` runs jobs in child processes, ``server`` is the small process that forks them, ``ray_pool`` runs them on a
Ray cluster, ``pools`` is what both have in common; ``ledger`` is the run directory's record, ``cache`` shares
finished trials between runs. Nothing here knows what a reward is.
"""
