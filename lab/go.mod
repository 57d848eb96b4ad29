module github.com/outrider-dev/outrider/lab

go 1.26

require (
	github.com/hashicorp/nomad/api v0.0.0-20260205205048-8315996478d1
	golang.org/x/sys v0.47.0
)

require (
	github.com/felixge/httpsnoop v1.1.0 // indirect
	github.com/go-viper/mapstructure/v2 v2.4.0 // indirect
	github.com/gorilla/websocket v1.5.3 // indirect
	github.com/hashicorp/cronexpr v1.1.3 // indirect
	github.com/hashicorp/errwrap v1.0.0 // indirect
	github.com/hashicorp/go-cleanhttp v0.5.2 // indirect
	github.com/hashicorp/go-multierror v1.1.1 // indirect
	github.com/hashicorp/go-rootcerts v1.0.2 // indirect
	github.com/mitchellh/go-homedir v1.1.0 // indirect
	github.com/stretchr/testify v1.11.1 // indirect
)
