package main
import ("testing";"os";"time";"strings";"github.com/elevisor/elevisor/internal/repro")
func TestX(t *testing.T){
 tb,err:=repro.Load()
 if err!=nil{t.Fatal(err)}
 s:=repro.Suite{Seeds:1,Length:repro.Length{Total:2e9,Ramp:300*time.Millisecond},Workers:2}
 t0:=time.Now()
 rs,err:=s.Run(tb,func(c repro.Cell)bool{return os.Getenv("C")==""||strings.Contains(os.Getenv("C"),c.Config)})
 if err!=nil{t.Fatal(err)}
 repro.Write(os.Stdout,"text",rs)
 t.Log(time.Since(t0))
}
