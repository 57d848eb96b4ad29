// Package inline reads what a Python script says about itself (PEP 723, inline
// script metadata).
package inline

// Metadata is that of a script.
type Metadata struct {
	RequiresPython string   // a PEP 440 specifier, "" where it says none
	Dependencies   []string // PEP 508 requirements
}

// Read returns the metadata of a script's source; nil where it has none. An error is
// one sentence with the line of the script.
func Read(source []byte) (*Metadata, error) { return nil, nil }
