// One program for all of Kubernetes, so that a node needs one file: argv[0] (a link's name), or else the first
// argument, says which program it is.
package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	_ "time/tzdata"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectlcmd "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubeadm "k8s.io/kubernetes/cmd/kubeadm/app"
	kubeadmutil "k8s.io/kubernetes/cmd/kubeadm/app/util/errors"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// Each constructor may run only once in a process: it installs the handler of signals.
func component(newCommand func() *cobra.Command) func() int {
	return func() int { return cli.Run(newCommand()) }
}

var programs = map[string]func() int{
	"kube-apiserver":          component(apiserver.NewAPIServerCommand),
	"kube-controller-manager": component(controllermanager.NewControllerManagerCommand),
	"kube-scheduler":          component(func() *cobra.Command { return scheduler.NewSchedulerCommand() }),
	"kube-proxy":              component(proxy.NewProxyCommand),
	"kubelet":                 component(func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) }),
	"kubectl":                 runKubectl,
	"kubeadm":                 runKubeadm,
	"crictl":                  runCrictl,
}

func runKubectl() int {
	logs.GlogSetter(kubectlcmd.GetLogVerbosity(os.Args))
	if err := cli.RunNoErrOutput(kubectlcmd.NewDefaultKubectlCommand()); err != nil {
		kubectlutil.CheckErr(err)
	}
	return 0
}

func runKubeadm() int {
	kubeadmutil.HandleError(kubeadm.Run())
	return 0
}

func main() {
	program := programs[filepath.Base(os.Args[0])]
	if program == nil && len(os.Args) > 1 {
		os.Args = os.Args[1:]
		program = programs[os.Args[0]]
	}
	if program == nil {
		fmt.Fprintln(os.Stderr, "usage: kube <"+strings.Join(slices.Sorted(maps.Keys(programs)), "|")+"> ...")
		os.Exit(2)
	}
	os.Exit(program())
}
