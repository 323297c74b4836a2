"""`queuectl store info`.

commands  Defines the group `store`.
info      `store info`: what the store is, how full it is, and what its requests cost.
"""
