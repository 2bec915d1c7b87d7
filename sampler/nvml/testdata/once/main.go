// Command once opens NVML, takes one reading and prints both as JSON lines.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"sparkrun/internal/sample"
	"sparkrun/sampler/nvml"
)

func main() {
	r, err := nvml.Open()
	if err != nil {
		fmt.Println(err)
		os.Exit(3)
	}
	defer r.Close()
	var g sample.GPU
	r.Read(&g)
	out := json.NewEncoder(os.Stdout)
	_ = out.Encode(r.Device())
	_ = out.Encode(g)
}
