package configs

import _ "embed" // for the script

// BandwidthScript is the Python program that measures the memory's bandwidth; its own
// first lines say how it is called and what it prints.
//
//go:embed bandwidth.py
var BandwidthScript string
