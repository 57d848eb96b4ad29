// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package release

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// sbom writes the list of what the binary is made of (software bill of materials) in CycloneDX's form. It has no serial
// number, and the time of the commit: the same binary has the same list.
func (a *artefact) sbom(_ context.Context, dir string) error {
	std, err := goLicense(a.goroot)
	if err != nil {
		return err
	}
	bom := cdx.NewBOM()
	components, dependencies := []cdx.Component{}, []cdx.Dependency{}
	goVersion := strings.TrimPrefix(a.info.GoVersion, "go")
	core := component(cdx.ComponentTypeLibrary, projectPath+"internal/core", "v"+a.version(), ownLicense)
	shared := []cdx.Component{core, component(cdx.ComponentTypeLibrary, "std", goVersion, std.String())}
	refs := map[string]string{}
	for _, m := range a.modules {
		c := component(cdx.ComponentTypeLibrary, m.Path, m.Version, m.licenses.String())
		c.Hashes, err = moduleHash(m.Sum)
		if err != nil {
			return fmt.Errorf("%s: %w", m.Path, err)
		}
		refs[m.Path+"@"+m.Version] = c.BOMRef
		components = append(components, c)
	}
	components = append(components, shared...)
	for i, p := range a.programs {
		c := component(cdx.ComponentTypeApplication, p.info.Path, "v"+a.version(), ownLicense)
		c.Name = filepath.Base(p.path)
		if p.arch != "" { // one of several of the same package
			c.BOMRef += "?goarch=" + p.arch
			c.PackageURL = c.BOMRef
		}
		text, err := os.ReadFile(p.path)
		if err != nil {
			return err
		}
		c.Hashes = sha(sha256.Sum256(text))
		var uses []string
		for _, m := range p.modules {
			uses = append(uses, refs[m])
		}
		for _, s := range shared {
			uses = append(uses, s.BOMRef)
		}
		if i == 0 {
			c.Description = a.summary
			c.ExternalReferences = &[]cdx.ExternalReference{{Type: cdx.ERTypeVCS, URL: Project,
				Comment: "commit " + a.setting("vcs.revision")}}
			bom.Metadata = &cdx.Metadata{Timestamp: a.time.Format(time.RFC3339), Component: &c}
			if a.libusb {
				l := cdx.Component{BOMRef: "libusb", Type: cdx.ComponentTypeLibrary, Name: "libusb-1.0.so.0",
					Description: "of the system, loaded at the start",
					Licenses:    &cdx.Licenses{{License: &cdx.License{ID: "LGPL-2.1-or-later"}}}}
				components = append(components, l)
				uses = append(uses, l.BOMRef)
			}
		} else {
			components = append(components, c)
			*dependencies[0].Dependencies = append(*dependencies[0].Dependencies, c.BOMRef)
		}
		slices.Sort(uses)
		dependencies = append(dependencies, cdx.Dependency{Ref: c.BOMRef, Dependencies: &uses})
	}
	bom.Components, bom.Dependencies = &components, &dependencies
	out, err := os.Create(filepath.Join(dir, fmt.Sprintf("%s_%s_linux_%s.cdx.json", a.name(), a.version(), a.arch)))
	if err != nil {
		return err
	}
	defer out.Close()
	if err := cdx.NewBOMEncoder(out, cdx.BOMFileFormatJSON).SetPretty(true).Encode(bom); err != nil {
		return err
	}
	return out.Close()
}

// component is a module or a program of one. Its name is the path of the module or package.
func component(kind cdx.ComponentType, path, version, license string) cdx.Component {
	url := "pkg:golang/" + path + "@" + strings.ReplaceAll(version, "+", "%2B")
	c := cdx.Component{BOMRef: url, Type: kind, Name: path, Version: version, PackageURL: url}
	if strings.Contains(license, " ") {
		c.Licenses = &cdx.Licenses{{Expression: license}}
	} else {
		c.Licenses = &cdx.Licenses{{License: &cdx.License{ID: license}}}
	}
	return c
}

// moduleHash is that of go.sum, which is the SHA-256 of a list of the files' hashes.
func moduleHash(sum string) (*[]cdx.Hash, error) {
	raw, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(sum, "h1:"))
	if err != nil || len(raw) != sha256.Size {
		return nil, fmt.Errorf("the checksum %q is not one of go.sum", sum)
	}
	return sha([sha256.Size]byte(raw)), nil
}

func sha(sum [sha256.Size]byte) *[]cdx.Hash {
	return &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(sum[:])}}
}
