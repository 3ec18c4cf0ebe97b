"""The bridge to the CuTe DSL: every use of an instruction is spelled here."""
