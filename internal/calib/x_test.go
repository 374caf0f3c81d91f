package main
import ("testing";"os";"time";"github.com/elevisor/elevisor/internal/repro")
func TestX(t *testing.T){
 tb,err:=repro.Load("rfc-read","rfc-write","rfc-rw-read","rfc-rw-write","rfc-two-file-copy","random-access")
 if err!=nil{t.Fatal(err)}
 s:=repro.Suite{Seeds:1,Length:repro.Length{Total:2e9,Ramp:300*time.Millisecond},Workers:2}
 t0:=time.Now()
 rs,err:=s.Run(tb,func(c repro.Cell)bool{return c.Config=="blkmq_ts0"||c.Config=="blkmq_ts250"||c.Config=="whole_disk"})
 if err!=nil{t.Fatal(err)}
 repro.Write(os.Stdout,"text",rs)
 n:=0.0
 for _,r:=range rs{ if r.Virtual<3{n+=r.SimMean*1.7}}
 t.Log(time.Since(t0), n, "requests", float64(time.Since(t0).Nanoseconds())*2/n,"ns cpu a request")
}
