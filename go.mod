// The root module holds the tools only; the code is in the modules of go.work.
module github.com/outrider-dev/outrider

go 1.26

tool github.com/magefile/mage

require github.com/magefile/mage v1.17.2 // indirect
