package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const criTimeout = 30 * time.Second

// The part of crictl that kind calls in a node (inspecti, images), that the tests call (inspect), and two lists for
// people who look into one. The whole crictl is a module of its own, with dependencies that Kubernetes does not have.
var criCommands = map[string]func(context.Context, *grpc.ClientConn, []string) error{
	"inspect":  inspectContainers,
	"inspecti": inspectImages,
	"images":   listImages,
	"pods":     listPods,
	"ps":       listContainers,
}

func runCrictl() int {
	if len(os.Args) < 2 || criCommands[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: crictl images|inspecti IMAGE...|inspect CONTAINER...|pods|ps")
		return 2
	}
	endpoint := os.Getenv("CONTAINER_RUNTIME_ENDPOINT")
	if endpoint == "" {
		endpoint = "unix:///run/containerd/containerd.sock"
	}
	connection, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err == nil {
		defer connection.Close()
		ctx, cancel := context.WithTimeout(context.Background(), criTimeout)
		defer cancel()
		err = criCommands[os.Args[1]](ctx, connection, os.Args[2:])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "crictl:", err)
		return 1
	}
	return 0
}

func inspectImages(ctx context.Context, connection *grpc.ClientConn, arguments []string) error {
	client := cri.NewImageServiceClient(connection)
	for _, argument := range arguments {
		if strings.HasPrefix(argument, "-") {
			continue
		}
		answer, err := client.ImageStatus(ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: argument}})
		if err != nil {
			return err
		}
		image := answer.Image
		if image == nil {
			return fmt.Errorf("no such image %q present", argument)
		}
		text, err := json.MarshalIndent(map[string]any{"status": map[string]any{
			"id": image.Id, "repoTags": image.RepoTags, "repoDigests": image.RepoDigests,
			"size": fmt.Sprint(image.Size), "pinned": image.Pinned,
		}}, "", "  ")
		if err != nil {
			return err
		}
		fmt.Println(string(text))
	}
	return nil
}

// Prints what crictl prints of a container's status, and its `info`, where containerd tells the process.
func inspectContainers(ctx context.Context, connection *grpc.ClientConn, arguments []string) error {
	client := cri.NewRuntimeServiceClient(connection)
	for _, argument := range arguments {
		if strings.HasPrefix(argument, "-") {
			continue
		}
		answer, err := client.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: argument, Verbose: true})
		if err != nil {
			return err
		}
		status := answer.Status
		text, err := json.MarshalIndent(map[string]any{
			"info": json.RawMessage(answer.Info["info"]),
			"status": map[string]any{
				"id": status.Id, "image": status.Image, "labels": status.Labels, "logPath": status.LogPath,
				"metadata": status.Metadata, "reason": status.Reason, "state": status.State.String(),
			},
		}, "", "  ")
		if err != nil {
			return err
		}
		fmt.Println(string(text))
	}
	return nil
}

func listImages(ctx context.Context, connection *grpc.ClientConn, _ []string) error {
	answer, err := cri.NewImageServiceClient(connection).ListImages(ctx, &cri.ListImagesRequest{})
	if err != nil {
		return err
	}
	for _, image := range answer.Images {
		fmt.Println(strings.Join(image.RepoTags, ","), image.Id, image.Size)
	}
	return nil
}

func listPods(ctx context.Context, connection *grpc.ClientConn, _ []string) error {
	answer, err := cri.NewRuntimeServiceClient(connection).ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	if err != nil {
		return err
	}
	for _, pod := range answer.Items {
		fmt.Println(pod.Id, pod.State, pod.Metadata.Namespace+"/"+pod.Metadata.Name)
	}
	return nil
}

func listContainers(ctx context.Context, connection *grpc.ClientConn, _ []string) error {
	answer, err := cri.NewRuntimeServiceClient(connection).ListContainers(ctx, &cri.ListContainersRequest{})
	if err != nil {
		return err
	}
	for _, container := range answer.Containers {
		labels := container.Labels
		pod := labels["io.kubernetes.pod.namespace"] + "/" + labels["io.kubernetes.pod.name"]
		fmt.Println(container.Id, container.State, pod, container.Metadata.Name, container.Metadata.Attempt)
	}
	return nil
}
