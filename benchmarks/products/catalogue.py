"""The products, by name."""

from __future__ import annotations

from types import MappingProxyType

from benchmarks.products.notes import NOTES
from benchmarks.products.sums import SUMS

PRODUCTS = MappingProxyType({product.name: product for product in (SUMS, NOTES)})
