// Command kube is every Kubernetes component the lab runs, in one binary:
// the first argument names the component, the rest are its own flags.
package main

import (
	"context"
	"log"
	"os"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	kubectl "k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func main() {
	if os.Args = os.Args[1:]; len(os.Args) == 0 {
		log.Fatalln("kube: name a component")
	}
	switch os.Args[0] {
	case "etcd":
		etcdmain.Main(os.Args)
	case "kube-apiserver":
		os.Exit(cli.Run(apiserver.NewAPIServerCommand()))
	case "kube-controller-manager":
		os.Exit(cli.Run(controllers.NewControllerManagerCommand()))
	case "kube-scheduler":
		os.Exit(cli.Run(scheduler.NewSchedulerCommand()))
	case "kubelet":
		// 1.33's constructor takes nothing, 1.36's a context.
		switch build := any(kubelet.NewKubeletCommand).(type) {
		case func() *cobra.Command:
			os.Exit(cli.Run(build()))
		case func(context.Context) *cobra.Command:
			os.Exit(cli.Run(build(context.Background())))
		}
	case "kubectl":
		if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
			util.CheckErr(err)
		}
	default:
		log.Fatalln("kube: no component named", os.Args[0])
	}
}
