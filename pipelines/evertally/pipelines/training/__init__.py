"""Training on the budget that is left: DP-KFC, its data-free preconditioner, and what guards its noise.

The mathematics stands in probes, losses, layers, taps, factors, preconditioner, ghost and optimizers; import
from those modules, `interfaces` says what passes between them. Everything here needs the extra `train`
(PyTorch), so this package imports nothing by itself.
"""
