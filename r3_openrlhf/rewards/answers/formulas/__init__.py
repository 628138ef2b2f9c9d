"""Formulas: one spelling, their values, and whether two are equal."""
