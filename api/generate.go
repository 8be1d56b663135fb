package api

//go:generate go -C internal/gen tool oapi-codegen -config types.yaml ../../openapi.yaml
//go:generate go -C internal/gen tool oapi-codegen -config server.yaml ../../openapi.yaml
//go:generate go -C internal/gen tool oapi-codegen -config client.yaml ../../openapi.yaml
