"""`queuectl store …`: commands on a whole store.

commands     Defines the group `store`.
info         `store info`: what the store is, how full it is, and what its requests cost.
maintenance  `store verify|adopt|upgrade`: checks a store, adopts a restored copy.
"""
